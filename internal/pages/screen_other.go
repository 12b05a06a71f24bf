//go:build !linux

package main

import "errors"

// captureScreen returns an error, because this system is not supported.
func captureScreen() (string, error) { return "", errors.ErrUnsupported }
