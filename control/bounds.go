package control

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// ProtocolLimit is one limit of the protocol.
type ProtocolLimit struct {
	What  string
	Limit string
}

// ProtocolLimits lists the limits of the protocol, for its documentation.
func ProtocolLimits() []ProtocolLimit {
	size := func(n int64) string {
		if n < 1<<10 {
			return fmt.Sprint(n, " bytes")
		}
		return queue.FormatSize(n)
	}
	count := func(n int) string { return fmt.Sprint(n) }
	return []ProtocolLimit{
		{"line, in each direction", size(MaxLine)},
		{"line of a caller without rights", size(outsideLine)},
		{"members of a request object", count(maxMembers)},
		{"members of any other JSON object", count(queue.MaxMembers)},
		{"`id` in a request", size(maxRequestID)},
		{"job ids in a request", count(MaxNames)},
		{"job ids in `wait` and `events`", count(MaxWaits)},
		{"arguments and variables of all jobs in an `enqueue.batch`", count(MaxEntries)},
		{"states or event kinds in a request", count(MaxTexts)},
		{"labels in a request", count(queue.MaxLabels)},
		{"`id_glob`", size(queue.MaxGlob)},
		{"`value` in `config.set`", size(MaxScalar)},
		{"`n` in `logs`", count(MaxLines)},
		{"selected jobs that one request acts on", count(SelectStep)},
		{"requests in progress: per connection, per user", fmt.Sprintf("%d, %d", connRequests, userRequests)},
		{"open streams per user", count(MaxStreams)},
		{"lists, selections and methods with " + count(manyNames) + " or more ids in progress, per user", count(userLists)},
		{"bytes in progress: per user, and in addition per connection", fmt.Sprintf("%s, %s", size(userBytes), size(connBytes))},
		{"requests of more than " + size(largeRequest) + " in progress: per user, in total", fmt.Sprintf("1, %d", largePlaces)},
		{"concurrent reads of lists, selections, events and output: for each user; for all users who are not admins, together; and of any kind, for all users together", fmt.Sprintf("1, %d, %d", manyPlaces, readPlaces)},
		{"waiting time: for the user's own limits, for a slot to read", fmt.Sprintf("%s, %s", queue.FormatDuration(roomWait), queue.FormatDuration(placeWait))},
		{"time limit: first line of a connection; more of a line beyond " + size(connBytes), fmt.Sprintf("%s, %s", queue.FormatDuration(firstLine), queue.FormatDuration(stallLimit))},
		{"time limit of an idle connection (no request in progress)", queue.FormatDuration(idleLimit)},
		{"time limit for the client to read: an answer, a piece of a stream", fmt.Sprintf("%s, %s", queue.FormatDuration(answerLimit), queue.FormatDuration(tellLimit))},
	}
}
