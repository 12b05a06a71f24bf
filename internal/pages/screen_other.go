//go:build !linux

package main

import "errors"

// captureExampleScreen returns an error, because this system is not supported.
func captureExampleScreen() (string, error) { return "", errors.ErrUnsupported }
