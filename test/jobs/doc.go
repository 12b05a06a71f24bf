// Package jobs checks from outside when jobs start, in which order, and how often.
package jobs
