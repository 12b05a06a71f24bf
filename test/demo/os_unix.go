//go:build unix

package main

const (
	suffix = ""   // of programs
	then   = "; " // between two commands of the shell
)
