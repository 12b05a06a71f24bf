// Package copies makes copies of a program that keep running while the program itself is replaced.
// Windows does not allow replacing a running program.
package copies
