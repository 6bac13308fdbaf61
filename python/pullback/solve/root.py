"""x"""
def root(): pass
