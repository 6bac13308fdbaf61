#pragma once
#define CUDASIM_FINDINGS
inline int plant(const char*) { return 0; }
inline int measure_speed() { return 0; }
