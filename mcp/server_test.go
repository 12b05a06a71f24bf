package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// The error of a tool contains the service's error code and the complete text, which says that the job is
// enqueued. Without that part, an agent would enqueue its job again.
func TestToolErrorKeepsServiceText(t *testing.T) {
	cause := queue.Errorf(queue.CodeUnavailable, "the service is stopping")
	failing := &tool{handler: func(*toolCall, context.Context, toolArguments) (any, error) {
		return nil, fmt.Errorf("job 17 was enqueued, but waiting failed: %w; to wait for job 17, use the tool wait", cause)
	}}
	s := &toolCall{options: ServerOptions{ExplainError: func(err error) error { return err }}}
	result := s.runTool(t.Context(), failing, nil)
	var got struct{ Error, Code string }
	raw, err := json.Marshal(result.StructuredContent)
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	const want = "job 17 was enqueued, but waiting failed: the service is stopping; to wait for job 17, use the tool wait"
	if err != nil || !result.IsError || got.Error != want || got.Code != string(queue.CodeUnavailable) {
		t.Errorf("got %+v, %v", got, err)
	}
}
