// Marks the functions of the C ABI: everything else is hidden, so libraries of several instruction sets can be loaded
// in one process.
#pragma once

#define PACELINE_API extern "C" __attribute__((visibility("default")))
