// Package main measures the shipped program beside the machine's own limits, in
// the same run and in turns, so that a noisy machine harms both alike.
//
// It builds the program, drives it with default settings over its socket in a
// folder on a real disk, checks after every run that nothing was lost, and
// prints one Markdown table. Exit code 1 means that a check failed, 2 that a
// target was missed.
package main
