package process

import "time"

// notesFD returns the descriptor of the FIFO for the poll. It returns -1 if there is no FIFO, or if its
// next read is due later.
func (r *run) notesFD() int32 {
	if r.c.PrivateDir == nil || !r.nextNoteRead.IsZero() {
		return -1
	}
	return int32(r.c.PrivateDir.NotesFD())
}

// untilNoteRead returns the time until the next read of the notes. It returns a negative duration if
// none is due.
func (r *run) untilNoteRead() time.Duration {
	if r.nextNoteRead.IsZero() {
		return -1
	}
	return max(0, time.Until(r.nextNoteRead))
}

// readNotes reads the notes if that is due. The next read is due NotesEvery later, so a command that
// writes notes all the time uses little of this process's time.
func (r *run) readNotes(now time.Time) {
	if r.blocked || r.nextNoteRead.IsZero() || now.Before(r.nextNoteRead) {
		return
	}
	var data []byte
	r.callBlocking(func() { data = r.c.PrivateDir.ReadNotes() })
	if pending := r.c.Notes.OnNotes(data); pending || len(data) > 0 {
		r.nextNoteRead = now.Add(NotesEvery)
	} else {
		r.nextNoteRead = time.Time{}
	}
}
