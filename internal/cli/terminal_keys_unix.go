//go:build unix

package cli

// keyParser interprets the escape sequences in a user's input to a job's terminal, like ssh: after
// Enter, ~. detaches, ~? prints help and ~~ sends a tilde.
type keyParser struct {
	escaped   bool // the last key was not Enter
	tildeHeld bool // the last key was a tilde after Enter
}

// keyAction is a request in the user's input.
type keyAction int

const (
	actNone keyAction = iota
	actHelp
	actLeave
)

// take interprets typed input up to the first request of the user, w. data holds the keys before
// the request, which are for the job. rest holds the keys after the request.
func (k *keyParser) take(typed []byte) (data []byte, w keyAction, rest []byte) {
	for i, key := range typed {
		if k.tildeHeld {
			k.tildeHeld = false
			switch key {
			case '.':
				return data, actLeave, nil
			case '?':
				return data, actHelp, typed[i+1:]
			case '~':
			default:
				data = append(data, '~')
			}
		} else if key == '~' && !k.escaped {
			k.tildeHeld = true
			continue
		}
		k.escaped = key != '\r' && key != '\n'
		data = append(data, key)
	}
	return data, actNone, nil
}
