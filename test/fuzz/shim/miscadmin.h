/*
 * Stack depth and interrupts for fuzzing.  json_text_fuzz.c keeps its inputs
 * too short to fill the stack.
 */
#ifndef FUZZ_MISCADMIN_H
#define FUZZ_MISCADMIN_H

#define check_stack_depth() ((void) 0)
#define CHECK_FOR_INTERRUPTS() ((void) 0)

#endif
