//go:build unix

package main

const (
	exeSuffix        = ""   // file name extension of programs
	commandSeparator = "; " // separates two commands in a shell line
)
