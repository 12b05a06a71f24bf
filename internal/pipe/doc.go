// Package pipe connects processes of one Windows machine by a named pipe. Each end can find out which account
// and process the other end is.
//
// Start with Listen and Dial, then IdentifyClient and IdentifyServer.
package pipe
