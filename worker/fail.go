package worker

import "github.com/queuectl/queuectl/internal/failpoint"

// The instants at which a killed service is most likely to lose or repeat
// something; a test kills it there.
func hitClaimed()   { failpoint.Hit("claimed") }
func hitStartSent() { failpoint.Hit("start-sent") }
func hitSettled()   { failpoint.Hit("settled") }
func hitBeforeAck() { failpoint.Hit("before-ack") }
