// Package pipe connects processes of one Windows machine by a named pipe. Each end can reliably
// identify the other end.
//
// Start with Listen and Dial, then ClientOf and ServerOf.
package pipe
