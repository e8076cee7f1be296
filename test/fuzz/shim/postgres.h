/*
 * As much of the server as src/json_text.c needs, for fuzzing it alone.
 */
#ifndef FUZZ_POSTGRES_H
#define FUZZ_POSTGRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint32_t uint32;

#endif
