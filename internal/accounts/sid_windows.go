package accounts

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

// On Windows, an integer identifies each account, like a uid on Unix. These constants divide the integers into
// ranges: builtin groups start at 512, this machine's accounts at 0x30000 as in Cygwin, and the hashes that
// identify all other accounts at 2^52. All integers are below 2^53, so JSON can represent them exactly.
// See docs/decisions/0088.
const (
	firstBuiltinGroupID = 512
	firstLocalAccountID = 0x30000
	firstSIDDigestID    = 1 << 52
	maxIDExclusive      = 1 << 53
)

// IDOfSID returns the number that identifies a user or a group:
//
//   - 0 is the account SYSTEM, the counterpart of root.
//   - n is S-1-5-n or the builtin group S-1-5-32-n. For example, the administrators are 544.
//   - 0x30000+n is account n of this machine.
//   - The number of any other account is a digest (a hash) of its SID. It is the same on all machines.
//
// IDOfSID remembers the SID of each digest, so that SIDOfID can map the digest back.
func IDOfSID(sid *windows.SID) int {
	n := sid.SubAuthorityCount()
	if sid.IdentifierAuthority() == windows.SECURITY_NT_AUTHORITY && n > 0 {
		first, last := sid.SubAuthority(0), int(sid.SubAuthority(uint32(n-1)))
		switch {
		case n == 1 && first == windows.SECURITY_LOCAL_SYSTEM_RID:
			return 0
		case n == 1 && 0 < last && last < firstBuiltinGroupID:
			return last
		case n == 2 && first == windows.SECURITY_BUILTIN_DOMAIN_RID && firstBuiltinGroupID <= last &&
			last < firstLocalAccountID:
			return last
		case isLocalAccount(sid):
			return firstLocalAccountID + last
		}
	}
	sum := sha256.Sum256(unsafe.Slice((*byte)(unsafe.Pointer(sid)), sid.Len()))
	id := int(firstSIDDigestID | binary.BigEndian.Uint64(sum[:])>>12)
	sidsByDigestID.add(id, sid)
	return id
}

// SIDOfID returns the SID of the account that a number identifies. It maps a digest back to its SID only if
// IDOfSID has returned that digest earlier in this process.
func SIDOfID(id int) (*windows.SID, bool) {
	text := ""
	switch {
	case id == 0:
		text = fmt.Sprintf("S-1-5-%d", windows.SECURITY_LOCAL_SYSTEM_RID)
	case 0 < id && id < firstBuiltinGroupID && id != windows.SECURITY_LOCAL_SYSTEM_RID:
		text = fmt.Sprintf("S-1-5-%d", id)
	case firstBuiltinGroupID <= id && id < firstLocalAccountID:
		text = fmt.Sprintf("S-1-5-%d-%d", windows.SECURITY_BUILTIN_DOMAIN_RID, id)
	case firstLocalAccountID <= id && id < firstLocalAccountID+1<<32 && machineSID() != nil:
		text = fmt.Sprintf("%s-%d", machineSID(), id-firstLocalAccountID)
	default:
		return sidsByDigestID.find(id)
	}
	sid, err := windows.StringToSid(text)
	return sid, err == nil
}

// isLocalAccount reports whether an account belongs to this machine.
func isLocalAccount(sid *windows.SID) bool {
	if machineSID() == nil {
		return false
	}
	number, found := strings.CutPrefix(sid.String(), machineSID().String()+"-")
	return found && !strings.Contains(number, "-")
}

// sidsByDigestID maps each digest that IDOfSID has returned to the SID from which the digest was computed.
var sidsByDigestID sidTable

type sidTable struct {
	mu   sync.Mutex
	byID map[int]*windows.SID // SIDs by number; guarded by mu
}

func (s *sidTable) add(id int, sid *windows.SID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.byID[id]; known {
		return
	}
	if s.byID == nil || len(s.byID) >= maxCachedLookups {
		s.byID = map[int]*windows.SID{}
	}
	if own, err := sid.Copy(); err == nil {
		s.byID[id] = own
	}
}

func (s *sidTable) find(id int) (*windows.SID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sid, ok := s.byID[id]
	return sid, ok
}

// CurrentUserID returns the number of the user that this process runs as.
var CurrentUserID = sync.OnceValue(func() int {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		panic("accounts: cannot read the user of this process: " + err.Error())
	}
	return IDOfSID(user.User.Sid)
})

var (
	advapi32      = windows.NewLazySystemDLL("advapi32.dll")
	lsaOpenPolicy = advapi32.NewProc("LsaOpenPolicy")
	lsaQuery      = advapi32.NewProc("LsaQueryInformationPolicy")
	lsaFree       = advapi32.NewProc("LsaFreeMemory")
	lsaClose      = advapi32.NewProc("LsaClose")
)

// These constants are defined in ntsecapi.h.
const (
	lsaViewLocalInformation     = 1 // POLICY_VIEW_LOCAL_INFORMATION
	lsaAccountDomainInformation = 5 // PolicyAccountDomainInformation
)

// machineSID returns the SID that the SIDs of this machine's accounts begin with. It returns nil if Windows does not
// report the SID. In that case IDOfSID returns digests for this machine's accounts, as for all other accounts.
var machineSID = sync.OnceValue(func() *windows.SID {
	attributes := windows.OBJECT_ATTRIBUTES{Length: uint32(unsafe.Sizeof(windows.OBJECT_ATTRIBUTES{}))}
	var policy uintptr
	if status, _, _ := lsaOpenPolicy.Call(0, uintptr(unsafe.Pointer(&attributes)), lsaViewLocalInformation,
		uintptr(unsafe.Pointer(&policy))); status != 0 {
		return nil
	}
	defer lsaClose.Call(policy)
	var domain *struct {
		Name windows.NTUnicodeString
		SID  *windows.SID
	}
	if status, _, _ := lsaQuery.Call(policy, lsaAccountDomainInformation, uintptr(unsafe.Pointer(&domain))); status != 0 {
		return nil
	}
	defer lsaFree.Call(uintptr(unsafe.Pointer(domain)))
	if domain.SID == nil {
		return nil
	}
	sid, err := domain.SID.Copy()
	if err != nil {
		return nil
	}
	return sid
})
