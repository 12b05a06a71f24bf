package control

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/queuectl/queuectl/queue"
)

// ErrNoMethod means that DispatchMethodCall cannot call a method: it does not exist, or it sends a stream.
var ErrNoMethod = errors.New("no such method")

// DispatchMethodCall calls a method of api for the peer of ctx, as the server does for a request on a connection. The
// caller must have set the peer's right.
func DispatchMethodCall(ctx context.Context, api API, method string, paramsJSON json.RawMessage) (result any,
	err error) {
	m, peer := findMethod(method), PeerFrom(ctx)
	switch {
	case m == nil || m.SendsNotifications:
		return nil, ErrNoMethod
	case !peer.Right.Covers(m.Right):
		return nil, queue.Errorf(queue.CodeDenied, "another node has a version of queuectl that requires the right %q "+
			"for %s, and you do not have this right; run the same version on all nodes", m.Right, m.Name)
	}
	if paramsJSON != nil {
		if err := queue.CheckJSON(paramsJSON); err != nil {
			return nil, err
		}
	}
	params, err := m.decodeParams(paramsJSON)
	if err != nil {
		return nil, err
	}
	return m.call(ctx, api, params, nil)
}

// EncodeAnswer encodes a result or an error as the line of an answer that contains null as the id of the request.
func EncodeAnswer(result any, err error) []byte { return encodeAnswerLine(nil, result, err) }

// DecodeAnswer decodes the line of an answer and stores the result in *result. If the answer is an error, it
// returns that error.
func DecodeAnswer(line []byte, result any) error {
	m, err := parseReply(line)
	if err == nil && m.err == nil {
		err = json.Unmarshal(m.result, result)
	}
	if err != nil {
		return queue.Errorf(queue.CodeUnsupported, "the answer of another node cannot be read (%v), so the command may or "+
			"may not have taken effect; check the job with queuectl show, and the nodes' versions with queuectl node list", err)
	}
	return m.err
}
