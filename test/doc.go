// Package test keeps the promises from outside: it drives the real binary, in a
// process group of its own, over its real socket. It imports nothing of ours.
package test
