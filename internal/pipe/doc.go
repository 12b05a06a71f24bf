// Package pipe connects processes of one Windows machine by a named pipe, and lets each end
// identify the other reliably.
//
// Start with Listen and Dial, then ClientOf and ServerOf.
package pipe
