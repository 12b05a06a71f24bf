//go:build unix

package cli

// keys takes what is typed at a terminal that is joined, as ssh does: behind Enter ~. leaves,
// ~? asks for help and ~~ is a tilde.
type keys struct {
	within bool // the last key was not Enter
	tilde  bool // a tilde behind Enter waits for what follows it
}

// wish is what a person wants beside typing.
type wish int

const (
	wishNothing wish = iota
	wishHelp
	wishLeave
)

// take is what of the keys goes to the job, up to the first wish; rest is what follows that.
func (k *keys) take(typed []byte) (data []byte, w wish, rest []byte) {
	for i, key := range typed {
		if k.tilde {
			k.tilde = false
			switch key {
			case '.':
				return data, wishLeave, nil
			case '?':
				return data, wishHelp, typed[i+1:]
			case '~':
			default:
				data = append(data, '~')
			}
		} else if key == '~' && !k.within {
			k.tilde = true
			continue
		}
		k.within = key != '\r' && key != '\n'
		data = append(data, key)
	}
	return data, wishNothing, nil
}
