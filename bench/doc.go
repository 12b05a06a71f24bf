// Package main measures the shipped program and compares it with the limits of the machine, such as a bare fork
// and exec or an fsync. It alternates between the program and the limits, so that other load on the machine
// affects both.
//
// The benchmark builds the program and sends requests to the socket of a service. The service has default
// settings and a directory on a real disk. After every run, the benchmark checks that nothing was lost. It
// prints one Markdown table. Exit code 1 means that a check failed, and 2 that a target was missed.
package main
