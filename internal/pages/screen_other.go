//go:build !linux

package main

import "errors"

// screen is what the programs show on a terminal of a made-up queue, with its colours.
func screen() (string, error) { return "", errors.ErrUnsupported }
