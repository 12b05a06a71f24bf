//go:build !linux

package main

import "errors"

// screen returns an error, because this system is not supported.
func screen() (string, error) { return "", errors.ErrUnsupported }
