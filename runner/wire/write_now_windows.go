package wire

import "net"

// writeNow writes nothing and returns 0: a pipe does not show how many bytes it would accept
// without blocking. So the method Run of Outbox writes everything.
func writeNow(net.Conn, []byte) int { return 0 }
