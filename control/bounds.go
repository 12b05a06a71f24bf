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
		{"a line, each way", size(MaxLine)},
		{"a line of a caller without any right", size(outsideLine)},
		{"members of the envelope", count(maxMembers)},
		{"members of an object", count(queue.MaxMembers)},
		{"`id` of a request", size(maxRequestID)},
		{"ids of jobs in a request", count(MaxNames)},
		{"ids of jobs in `wait` and `events`", count(MaxWaits)},
		{"arguments and variables of all jobs of an `enqueue.batch`", count(MaxEntries)},
		{"states, or kinds of events, in a request", count(MaxTexts)},
		{"labels in a request", count(queue.MaxLabels)},
		{"`id_glob`", size(queue.MaxGlob)},
		{"`value` of `config.set`", size(MaxScalar)},
		{"`n` of `logs`", count(MaxLines)},
		{"jobs of a step of a verb on many", count(SelectStep)},
		{"requests under way: of a connection, of a user", fmt.Sprintf("%d, %d", connRequests, userRequests)},
		{"streams of a user", count(MaxStreams)},
		{"lists, selections and verbs on " + count(manyNames) + " ids or more under way: of a user", count(userLists)},
		{"bytes under way: of a user, and of each connection beside", fmt.Sprintf("%s, %s", size(userBytes), size(connBytes))},
		{"requests of more than " + size(largeRequest) + " under way: of a user, of all", fmt.Sprintf("1, %d", largePlaces)},
		{"reads at once: of lists, selections, events and output of one user, of all users but admins; of everything", fmt.Sprintf("1, %d, %d", manyPlaces, readPlaces)},
		{"wait for room in one's own share, for a turn to read", fmt.Sprintf("%s, %s", queue.FormatDuration(roomWait), queue.FormatDuration(placeWait))},
		{"first line of a connection; more of a line beyond " + size(connBytes), fmt.Sprintf("%s, %s", queue.FormatDuration(firstLine), queue.FormatDuration(stallLimit))},
		{"connection without a request under way", queue.FormatDuration(idleLimit)},
		{"an answer, a piece of a stream, that the client does not take", fmt.Sprintf("%s, %s", queue.FormatDuration(answerLimit), queue.FormatDuration(tellLimit))},
	}
}
