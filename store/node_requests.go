package store

import "context"

// NodeRequests sends requests between the nodes of a Cluster, through their database. A store that implements
// Cluster also implements NodeRequests.
type NodeRequests interface {
	// SendRequest sends a request to another node, and waits for the answer until ctx ends. mayTakeLong means that the
	// request may take seconds. Slow requests are read separately, so that other requests do not wait for them.
	SendRequest(ctx context.Context, nodeID int64, request []byte, mayTakeLong bool) (reply []byte, err error)
	// RequestHints returns a channel that receives a value when the node may have a new request. After the store is
	// closed, the channel receives nothing.
	RequestHints() <-chan struct{}
	// TakeRequests returns up to limit new requests to this node. It returns each request only once. If mayTakeLong is
	// true, it returns slow requests, and otherwise the other requests.
	TakeRequests(ctx context.Context, mayTakeLong bool, limit int) ([]NodeRequest, error)
	// AwaitedRequestNumbers returns the numbers of the unanswered requests to this node whose senders are still waiting.
	AwaitedRequestNumbers(ctx context.Context) (map[int64]bool, error)
	// SendReply sends the answer to the request with this number.
	SendReply(ctx context.Context, requestNumber int64, reply []byte) error
}

// NodeRequest is a request from another node.
type NodeRequest struct {
	Number  int64
	Payload []byte
}

// Limits of requests between nodes.
const (
	MaxNodeRequestBytes = 64 << 10  // maximum size of a request in bytes
	MaxNodeReplyBytes   = 512 << 10 // maximum size of an answer in bytes
)
