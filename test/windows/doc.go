// Package windows checks from outside the behaviour that differs on Windows.
package windows
