// Package main measures the shipped program. It compares the program with baselines, such as a bare fork and
// exec or a bare fsync. It measures the program and the baseline alternately, so that other load on the machine
// affects both.
//
// The benchmark sends requests to the socket of a service that has default settings and a directory on a real
// disk. After every run, the benchmark checks that no job was lost. It prints one Markdown table. Exit code 1
// means that a check failed, and 2 that a target was missed.
package main
