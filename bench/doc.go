// Package main measures the shipped program and compares it with the limits of the machine. The
// program and the limits are measured alternately in the same run, so that other load on the
// machine affects both.
//
// The benchmark builds the program and drives it through its socket, with default settings and in a
// directory on a real disk. After every run, it checks that nothing was lost. It prints one Markdown
// table. Exit code 1 means that a check failed, 2 that a target was missed.
package main
