// Package cli checks from outside what the commands print and how they exit.
package cli
