//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: this benchmark reads /proc, so it runs only on Linux")
	os.Exit(1)
}
