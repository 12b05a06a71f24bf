package main

const (
	suffix = ".exe" // of programs
	then   = " & "  // between two commands of the shell
)
