package main

const (
	exeSuffix        = ".exe" // file name extension of programs
	commandSeparator = " & "  // separates two commands in a shell line
)
