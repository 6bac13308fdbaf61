"""x"""
class LevenbergMarquardt: pass
