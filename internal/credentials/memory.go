package credentials

import (
	"crypto/sha256"
	"crypto/x509"
	"reflect"
	"sync"

	"k8s.io/utils/lru"
)

// memory keeps the last outcomes, whose certificates take maxLastRead together.
type memory struct {
	mu   sync.Mutex
	lru  *lru.Cache
	size int
}

func newMemory(most int) *memory {
	m := &memory{}
	m.lru = lru.NewWithEvictionFunc(most, func(_ lru.Key, old any) { m.size -= old.(outcome).size() }) //nolint:forcetypeassert // nothing else is added
	return m
}

func (o outcome) size() int {
	if o.certificates == nil {
		return 0
	}
	return o.certificates.size
}

func (m *memory) get(key [sha256.Size]byte) (outcome, bool) {
	known, ok := m.lru.Get(key)
	if !ok {
		return outcome{}, false
	}
	return known.(outcome), true //nolint:forcetypeassert // nothing else is added
}

func (m *memory) add(key [sha256.Size]byte, last outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.lru.Get(key); ok { // Another has read the same meanwhile.
		return
	}
	m.size += last.size()
	m.lru.Add(key, last)
	for m.size > maxLastRead {
		m.lru.RemoveOldest()
	}
}

// SizeOf is what certificates take in memory, at most: up to 76 times their text where that lists thousands of empty names.
func SizeOf(certificates ...*x509.Certificate) int {
	sum := 0
	for _, certificate := range certificates {
		sum += len(certificate.Raw) + sizeOf(reflect.ValueOf(certificate))
	}
	return sum
}

// sizeOf is what a value refers to. Bytes are left out: those of a certificate are parts of its text.
func sizeOf(value reflect.Value) int {
	sum := 0
	switch value.Kind() { //nolint:exhaustive // others refer to nothing
	case reflect.String:
		return value.Len()
	case reflect.Struct:
		for _, field := range value.Fields() {
			sum += sizeOf(field)
		}
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			return int(value.Elem().Type().Size()) + sizeOf(value.Elem())
		}
	case reflect.Slice:
		of := value.Type().Elem()
		if of.Kind() == reflect.Uint8 {
			return 0
		}
		sum = value.Cap() * int(of.Size())
		for i := range value.Len() {
			sum += sizeOf(value.Index(i))
		}
	}
	return sum
}
