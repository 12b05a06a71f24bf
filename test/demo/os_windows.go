package main

const (
	suffix = ".exe" // file name extension of programs
	then   = " & "  // separates two commands of the shell
)
