//go:build unix

package main

const (
	suffix = ""   // file name extension of programs
	then   = "; " // separates two commands of the shell
)
