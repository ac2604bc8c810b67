package retry

import (
	"runtime"
	"strings"
	"testing"
)

// A key is a part of the text that an expression made, and Go keeps all of that while the part is in use: for as long as its message is in work, and
// in the limits for longer.
func TestKey_KeepsNothingOfTheTextItIsAPartOf(t *testing.T) {
	const kept = 50
	long := `'` + strings.Repeat("a", 100) + `'`
	for n, expression := range []string{
		long + `.replace('', ` + long + `).replace('', ` + long + `)`,
		`('a,' + ` + long + `.replace('', ` + long + `).replace('', ` + long + `)).split(',')[0]`,
	} {
		key, err := CompileKey("key", expression)
		if err != nil {
			t.Fatal(err)
		}
		var keys [kept]string
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range keys {
			if keys[i], err = key.Of(Message{}); err != nil || keys[i] == "" {
				t.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(&keys)
		if taken := int64(after.HeapAlloc) - int64(before.HeapAlloc); taken > kept<<10 {
			t.Errorf("%d: %d keys of %d bytes keep %d KiB", n, kept, len(keys[0]), taken>>10)
		}
	}
}
