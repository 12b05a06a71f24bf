package control

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// ProtocolLimit describes one limit of the protocol.
type ProtocolLimit struct {
	Description string
	LimitText   string
}

// ProtocolLimits lists the limits of the protocol, for its documentation.
func ProtocolLimits() []ProtocolLimit {
	size, count := queue.DescribeSize, strconv.Itoa
	return []ProtocolLimit{
		{"length of a line, in each direction", size(MaxLineBytes)},
		{"length of a line from a user without rights", size(maxLineBytesWithoutAccess)},
		{"length of a last line without a newline", size(uncountedBytesPerConn)},
		{"members of the JSON object of a request", count(maxRequestMembers)},
		{"members of each JSON object inside a request", count(queue.MaxObjectMembers)},
		{"length of the `id` of a request", size(maxRequestIDBytes)},
		{"job ids in a request", count(MaxJobIDs)},
		{"job ids in `wait` and `events`", count(MaxWaitOrFollowJobIDs)},
		{"number of arguments and environment variables of all jobs together in one `enqueue.batch` request",
			count(MaxArgEnvCount)},
		{"job states or event kinds in a request", count(MaxTextListItems)},
		{"labels in a request", count(queue.MaxLabels)},
		{"length of `id_glob`", size(queue.MaxGlobBytes)},
		{"length of `value` in `config.set`", size(MaxSettingValueBytes)},
		{"largest `n` (lines) in `logs`", count(MaxOutputLines)},
		{"selected jobs that one request acts on", count(MaxJobsPerSelection)},
		{"requests in progress", fmt.Sprintf("%d per connection and %d per user", maxRequestsPerConn, maxRequestsPerUser)},
		{"open streams per user", count(MaxStreamsPerUser)},
		{"requests in progress per user that list jobs, select jobs, or contain " + count(manyJobIDsThreshold) +
			" or more job ids",
			count(maxManyJobsRequestsPerUser)},
		{"bytes of requests and answers in progress, per user",
			fmt.Sprintf("%s, plus %s for each connection", size(maxBytesInProgressPerUser), size(uncountedBytesPerConn))},
		{"requests in progress that are longer than " + size(largeRequestBytes),
			fmt.Sprintf("1 per user and %d for all users together", largeRequestSlots)},
		{"concurrent reads of lists, selections, events and output by users who are not admins",
			fmt.Sprintf("1 per user and %d for all these users together", manyJobsReadSlots)},
		{"concurrent reads of any kind, by all users together", count(readSlots)},
		{"longest time that a request waits until its user is below the limits", queue.FormatDuration(maxUserLimitWait)},
		{"longest time that a read waits until fewer reads are in progress", queue.FormatDuration(maxSlotWait)},
		{"time limit for the client to send the first line of a connection", queue.FormatDuration(firstLineTimeout)},
		{"time limit for the client to send the next part of a line longer than " + size(uncountedBytesPerConn),
			queue.FormatDuration(longLineStallTimeout)},
		{"time limit of an idle connection (no request in progress)", queue.FormatDuration(idleTimeout)},
		{"time limit for the client to read an answer", queue.FormatDuration(answerReadTimeout)},
		{"time limit for the client to read a piece of a stream", queue.FormatDuration(streamPieceReadTimeout)},
	}
}
