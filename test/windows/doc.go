// Package windows checks from outside what is different on Windows.
package windows
