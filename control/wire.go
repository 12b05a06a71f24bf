package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// ProtocolVersion is the version of the wire protocol.
const ProtocolVersion = 1

// MaxLineBytes is the maximum length of a line in bytes, in both directions. The limit keeps one client from
// using up the memory.
const MaxLineBytes = 8 << 20

// ErrorCodeInfo is one row of the table of error codes.
type ErrorCodeInfo struct {
	Code        queue.ErrorCode
	RPCCode     int    // error code of JSON-RPC
	ExitStatus  int    // exit status of the command line
	RetryAdvice string // whether a client may repeat the request after this error
}

// ErrorCodes lists all error codes in the order in which the documentation lists them.
var ErrorCodes = []ErrorCodeInfo{
	{queue.CodeInvalid, -32602, 2, "no"},
	{queue.CodeInvalidRequest, -32600, 2, "no"},
	{queue.CodeParse, -32700, 2, "no"},
	{queue.CodeTooLarge, -32700, 2, "no"},
	{queue.CodeUnsupported, -32601, 1, "no"},
	{queue.CodeNotFound, -32001, 4, "no"},
	{queue.CodeExists, -32002, 5, "no"},
	{queue.CodeWrongState, -32003, 5, "no"},
	{queue.CodeDenied, -32004, 5, "no"},
	{queue.CodeQueueFull, -32005, 5, "later"},
	{queue.CodeNoSpace, -32005, 5, "later"},
	{queue.CodeUnavailable, -32006, 3, "later"},
	{queue.CodeOutcomeUnknown, -32007, 1, "yes; for an enqueue, with the same idempotency key"},
	{queue.CodeInternal, -32603, 1, "no"},
}

// ErrorCodeInfoOf returns the row for the *queue.Error that err contains. If err contains none, it returns the
// row for the code internal.
func ErrorCodeInfoOf(err error) ErrorCodeInfo {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		if i := slices.IndexFunc(ErrorCodes, func(r ErrorCodeInfo) bool { return r.Code == e.Code }); i >= 0 {
			return ErrorCodes[i]
		}
	}
	return ErrorCodes[len(ErrorCodes)-1]
}

// rpcError is the error in an answer, as JSON-RPC 2.0 defines it.
type rpcError struct {
	Code    int          `json:"code"`
	Message string       `json:"message"`
	Data    rpcErrorData `json:"data"`
}

// rpcErrorData is the value of the member "data" of an rpcError. It contains the parts of a queue.Error.
type rpcErrorData struct {
	Code       queue.ErrorCode `json:"code"`
	Field      string          `json:"field,omitempty"`
	BatchIndex int             `json:"index,omitempty"`
}

func rpcErrorOf(err error) *rpcError {
	row := ErrorCodeInfoOf(err)
	e, ok := errors.AsType[*queue.Error](err)
	if !ok {
		e = &queue.Error{Message: err.Error()}
	}
	return &rpcError{row.RPCCode, queue.ClipJSON(e.Message, 2*queue.MaxErrorBytes),
		rpcErrorData{row.Code, queue.ClipForMessage(e.Field), e.BatchIndex}}
}

func (e *rpcError) toError() error {
	return &queue.Error{Code: e.Data.Code, Field: e.Data.Field, BatchIndex: e.Data.BatchIndex, Message: e.Message}
}

// These constants limit the envelope of a request, which is the JSON object around its parameters.
const (
	maxRequestMembers = 64
	maxRequestIDBytes = 256 // maximum bytes of the id, which each piece of a stream repeats
)

// request is one line from a client: a request object of JSON-RPC 2.0.
type request struct {
	id     json.RawMessage // nil for a notification, that is, a request that gets no answer
	method string
	params json.RawMessage // part of the line; nil if the request has none
}

// parseRequest parses a line from a client. It ignores unknown members of the envelope. If the line is JSON but not a
// valid request object, the error has the code queue.CodeInvalidRequest, and r contains the id if the line contains a
// valid id.
func parseRequest(line []byte) (r request, err error) {
	if err := queue.CheckJSON(line); err != nil {
		return r, err
	}
	switch first := bytes.TrimLeft(line, " \t\r\n"); first[0] {
	case '{':
	case '[':
		const text = "batch requests are not supported; send one request per line (no need to wait for answers)"
		return r, queue.Errorf(queue.CodeInvalidRequest, text)
	default:
		return r, queue.Errorf(queue.CodeInvalidRequest,
			"the line is not a request; send an object with id, method and params")
	}
	var memberErr error // first error about a member; returned only after the id is known
	members := 0
	err = queue.EachMember(line, func(name string, value json.RawMessage) error {
		if members++; members > maxRequestMembers {
			return invalidRequestError("", "the request has too many members; the maximum is %d", maxRequestMembers)
		}
		if err := r.readEnvelopeMember(name, value); err != nil && memberErr == nil {
			memberErr = err
		}
		return nil
	})
	e, known := errors.AsType[*queue.Error](err)
	switch {
	case known && e.Code == queue.CodeInvalid: // a member occurs twice
		err = invalidRequestError(e.Field, "%s", e.Message)
	case err == nil && memberErr == nil && r.method == "":
		memberErr = invalidRequestError("method", "required; give the name of a method")
	}
	if err != nil {
		return request{}, err
	}
	return r, memberErr
}

// readEnvelopeMember parses one member of the envelope of a request, such as id or method.
func (r *request) readEnvelopeMember(memberName string, value json.RawMessage) error {
	switch first := value[0]; memberName {
	case "id":
		if len(value) > maxRequestIDBytes {
			return invalidRequestError("id", "too long; the maximum is %d bytes", maxRequestIDBytes)
		}
		if first != '"' && first != '-' && (first < '0' || first > '9') {
			return invalidRequestError("id", "must be a number or text; without an id, the request is a "+
				"notification and gets no answer")
		}
		r.id = bytes.Clone(value) // copy the id, because it is still needed after the line is gone
	case "method":
		if first != '"' || json.Unmarshal(value, &r.method) != nil {
			return invalidRequestError("method", "must be text")
		}
	case "params":
		if first != '{' && first != '[' && string(value) != "null" {
			return invalidRequestError("params", "must be an object")
		}
		r.params = value
	case "jsonrpc":
		if string(value) != `"2.0"` {
			return invalidRequestError("jsonrpc", `must be "2.0"`)
		}
	}
	return nil
}

// invalidRequestError returns an error about a member of the envelope of a request.
func invalidRequestError(member, format string, args ...any) error {
	e := queue.InvalidFieldError(member, format, args...)
	e.Code = queue.CodeInvalidRequest
	return e
}

// encodeRequestLine returns the line for a request.
func encodeRequestLine(id int64, method string, params any) (line []byte, err error) {
	raw := []byte("null")
	if own, ok := params.(json.Marshaler); ok { // json.Marshal would scan the JSON again
		raw, err = own.MarshalJSON()
	} else if params != nil {
		raw, err = json.Marshal(params)
	}
	line = append(strconv.AppendInt([]byte(`{"jsonrpc":"2.0","id":`), id, 10), `,"method":"`...)
	line = append(append(append(line, method...), `","params":`...), raw...)
	return append(line, "}\n"...), err
}

// reply is one line from the service: an answer or a piece of a stream.
type reply struct {
	requestID int64 // id of the request; 0 if the line is an error about the whole connection
	// result is the result of a successful request.
	result      json.RawMessage
	err         error
	streamPiece json.RawMessage // piece of a stream; nil for an answer
}

// parseReply parses a line from the service. It is written to be fast, because a client that makes a single call spends
// much of its time in this function.
func parseReply(line []byte) (m reply, err error) {
	if err := queue.CheckJSON(line); err != nil {
		return m, err
	}
	err = queue.EachMember(line, func(name string, value json.RawMessage) (err error) {
		if string(value) == "null" {
			return nil
		}
		switch name {
		case "id":
			m.requestID, err = strconv.ParseInt(string(value), 10, 64)
		case "result":
			m.result = value
		case "error":
			var f rpcError
			err = json.Unmarshal(value, &f)
			m.err = f.toError()
		case "params":
			err = queue.EachMember(value, func(name string, value json.RawMessage) (err error) {
				switch name {
				case "id":
					m.requestID, err = strconv.ParseInt(string(value), 10, 64)
				case "value":
					m.streamPiece = value
				}
				return err
			})
		}
		return err
	})
	return m, err
}

// encodeAnswerLine returns the line of an answer that contains a result or an error. If the result does not fit into
// MaxLineBytes, the answer is an error instead.
func encodeAnswerLine(id json.RawMessage, result any, err error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	if err == nil {
		line, failed := json.Marshal(answerObject{JSONRPC: "2.0", ID: id, Result: result})
		if failed == nil && len(line) < MaxLineBytes {
			return append(line, '\n')
		}
		err = errAnswerTooLong
	}
	line, failed := json.Marshal(answerObject{JSONRPC: "2.0", ID: id, Error: rpcErrorOf(err)})
	if failed != nil {
		panic("control: cannot encode an error as JSON: " + failed.Error())
	}
	return append(line, '\n')
}

// answerObject is the answer to a request. It contains either a result or an error.
type answerObject struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

var errAnswerTooLong = queue.Errorf(queue.CodeTooLarge,
	"the response is longer than %d bytes; request fewer items or lines", MaxLineBytes)

// appendNotification appends the line of a notification to buf. requestID is the id of the request that opened the
// stream. Most notifications are pieces of output, so appendNotification encodes the text of such a piece itself, which
// is faster than encoding/json.
func appendNotification(buf []byte, method string, requestID json.RawMessage, streamPiece any) ([]byte, error) {
	const closingBraces = "}}}" // end of the piece, of the parameters and of the notification
	p, _ := streamPiece.(OutputPiece)
	text := p.Text
	if text != "" {
		p.Text = ""
		streamPiece = p
	}
	line, err := json.Marshal(struct {
		JSONRPC string             `json:"jsonrpc"`
		Method  string             `json:"method"`
		Params  notificationParams `json:"params"`
	}{"2.0", method, notificationParams{requestID, streamPiece}})
	if text != "" && err == nil {
		buf = append(append(buf, line[:len(line)-len(closingBraces)]...), `,"text":`...)
		buf, line = queue.AppendJSONString(buf, text), []byte(closingBraces)
	}
	return append(append(buf, line...), '\n'), err
}

// notificationParams holds the id of the request that opened a stream, and one piece of the stream.
type notificationParams struct {
	ID          json.RawMessage `json:"id"`
	StreamPiece any             `json:"value"`
}

// readLine reads a line of at most MaxLineBytes bytes and returns it without its newline. The last line needs
// no newline. If reading fails, readLine returns the part of the line that has arrived.
func readLine(r *bufio.Reader) (buf []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		limit := MaxLineBytes
		if err == nil {
			limit++ // the newline
		}
		if len(buf)+len(part) > limit {
			return nil, errAnswerTooLong
		}
		buf = append(buf, part...)
		switch {
		case err == nil:
			return buf[:len(buf)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(buf) > 0:
			return buf, nil
		}
		return buf, err
	}
}

// decode parses the parameters: the fields of the job and the other parameters of the method.
func (p *EnqueueParams) decode(raw json.RawMessage) error {
	d := newParamDecoder(p)
	if err := p.JobSpec.DecodeJSON(raw, d.decodeNonJobParam); err != nil {
		return err
	}
	d.givenParamsAndClasses["priority"] = specHasPriority(p.JobSpec)
	return d.checkGivenParams()
}

// decodeNonJobParam parses a parameter that is not a job field. It returns false if the method has no such parameter.
func (d *paramDecoder) decodeNonJobParam(name string, value json.RawMessage) (bool, error) {
	if _, own := d.fieldsByParamName[name]; !own {
		return false, nil
	}
	return true, d.decode(name, value)
}

// MarshalJSON implements json.Marshaler. It writes the job fields that JobSpec sets, and the other parameters that are
// not zero.
func (p EnqueueParams) MarshalJSON() ([]byte, error) {
	return encodeJobParams(p.JobSpec.GivenFields(), p)
}

// encodeJobParams returns a JSON object with the given job fields and with the members of the struct params that are
// not zero.
func encodeJobParams(fields map[string]any, params any) ([]byte, error) {
	for name, value := range fieldsByJSONName(reflect.ValueOf(params)) {
		if !value.IsZero() {
			fields[name] = value.Interface()
		}
	}
	return json.Marshal(fields)
}

// UnmarshalJSON implements json.Unmarshaler. It uses no reflection, because a client that prints output spends
// most of its time here.
func (p *OutputPiece) UnmarshalJSON(raw []byte) error {
	return queue.EachMember(raw, func(name string, value json.RawMessage) (err error) {
		switch name {
		case "id":
			p.JobID, err = queue.DecodeJSONString(value)
		case "attempt":
			err = json.Unmarshal(value, &p.Attempt)
		case "stream":
			p.Stream, err = queue.DecodeJSONString(value)
		case "at":
			err = json.Unmarshal(value, &p.PrintedAt)
		case "text":
			p.Text, err = queue.DecodeJSONString(value)
		case "base64":
			err = json.Unmarshal(value, &p.NonUTF8Bytes)
		case "dropped":
			err = json.Unmarshal(value, &p.DroppedBytes)
		case "damage":
			err = json.Unmarshal(value, &p.Damage)
		case "tty":
			err = json.Unmarshal(value, &p.FromTerminal)
		case "ended":
			err = json.Unmarshal(value, &p.AttemptEnded)
		}
		return err
	})
}

// decode parses the parameters of a batch. An error about a job contains the index of the job.
func (p *EnqueueBatchParams) decode(raw json.RawMessage) error {
	d := newParamDecoder(p)
	err := queue.EachMember(raw, func(name string, value json.RawMessage) error {
		if name != "jobs" || string(value) == "null" {
			return d.decode(name, value)
		}
		d.givenParamsAndClasses[name] = !isEmptyList(value)
		if err := p.decodeBatchJobs(value); err != nil {
			return err
		}
		d.recordValueClasses(d.ruleset.param(name), d.fieldsByParamName[name])
		return nil
	})
	if err != nil {
		return err
	}
	err = d.checkGivenParams()
	if fault, ok := errors.AsType[*queue.Error](err); ok && fault.Field == "next" && len(p.Jobs) > 1 {
		return fault.WithBatchIndex(slices.IndexFunc(p.Jobs, specHasPriority) + 1)
	}
	return err
}

// ArgAndEnvCount returns the number of a job's arguments and environment variables.
func ArgAndEnvCount(s *queue.Spec) int { return len(s.Argv) + len(s.Env) }

func (p *EnqueueBatchParams) decodeBatchJobs(raw json.RawMessage) error {
	entries := 0
	err := queue.EachElement(raw, func(value json.RawMessage) error {
		if len(p.Jobs) == queue.MaxJobsPerRequest {
			return queue.InvalidFieldError("jobs", "too many jobs; the maximum is %d per request; send several requests "+
				"with the same value of the parameter \"batch\"", queue.MaxJobsPerRequest)
		}
		var s queue.Spec
		if err := s.DecodeJSON(value, nil); err != nil {
			if e, ok := errors.AsType[*queue.Error](err); ok {
				return e.WithBatchIndex(len(p.Jobs) + 1)
			}
			return err
		}
		if entries += ArgAndEnvCount(&s); entries > MaxArgEnvCount {
			return queue.InvalidFieldError("jobs",
				"too many arguments and environment variables; the maximum is %d for all jobs "+
					"together; send fewer jobs per request", MaxArgEnvCount)
		}
		if p.Jobs == nil { // allocate the list once, for specs of the same length as the first: specs are large
			p.Jobs = make([]queue.Spec, 0, min(queue.MaxJobsPerRequest, len(raw)/len(value)+1))
		}
		p.Jobs = append(p.Jobs, s)
		return nil
	})
	if e, ok := errors.AsType[*queue.Error](err); ok && e.BatchIndex == 0 && e.Field == "" {
		return queue.InvalidFieldError("jobs", "%s", e.Message)
	}
	return err
}

// UnsupportedMethodError returns the error for a method that does not exist.
func UnsupportedMethodError(name string) error {
	return queue.Errorf(queue.CodeUnsupported, "there is no method %q%s", queue.ClipForMessage(name),
		queue.DidYouMean(name, MethodNames()))
}
