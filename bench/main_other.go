//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: it reads /proc and needs Linux; run it there")
	os.Exit(1)
}
