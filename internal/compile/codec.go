package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNewer is the error of Decode for a configuration that a newer operator wrote.
var ErrNewer = errors.New("the configuration is of a newer version than this worker reads")

// Encode writes a configuration. Equal configurations give equal bytes.
func Encode(c Config) ([]byte, error) {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of worker %s of %s: %w", c.Worker, c.Transport, err)
	}
	return append(data, '\n'), nil
}

// Decode reads a configuration for workers, which carry it out, and checks that it is whole. It ignores fields that it does not know: what a worker
// must understand comes with a higher version. The error is an ErrNewer where this build does not know the version.
func Decode(data []byte) (Config, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Config{}, fmt.Errorf("decode the configuration: %w", err)
	}
	if head.Version > Version {
		return Config{}, fmt.Errorf("%w: %d, at most %d", ErrNewer, head.Version, Version)
	}
	return Read(data)
}

// Read is Decode for the operator, which needs to know what the workers consume, whatever operator told them: after a rollback they still have the
// configurations of the later one. A later version adds fields, and keeps the names and the meaning of those that are here.
func Read(data []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, fmt.Errorf("decode the configuration: %w", err)
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// Hash names the content of an encoded configuration, in 16 hexadecimal digits.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// HashAll names the configurations of all worker groups, by their own names; a single one's is its own, and without any it is empty.
func HashAll(hashes []string) string {
	switch len(hashes) {
	case 0:
		return ""
	case 1:
		return hashes[0]
	default:
		return Hash([]byte(strings.Join(hashes, "/")))
	}
}

// maxQueues is how many work queues a configuration has: the 64 of a spec, and the 1,024 on their way out that a status has room for.
const maxQueues = 64 + 1024

// Validate says what keeps workers from taking a configuration: Decode refuses it then.
func (c *Config) Validate() error {
	if c.Version < 1 {
		return errors.New("version is missing")
	}
	if c.Exchanges.Fallback == "" || c.Exchanges.Return == "" || c.Exchanges.Failed == "" {
		return errors.New("exchanges: fallback, return and failed are needed")
	}
	if len(c.Queues) == 0 {
		return errors.New("queues is empty")
	}
	if len(c.Queues) > maxQueues {
		return fmt.Errorf("queues has %d elements, and %d are allowed", len(c.Queues), maxQueues)
	}
	for i, queue := range c.Queues {
		if _, ok := c.Policies[queue.Policy]; !ok {
			return fmt.Errorf("queues[%d]: policy %q is not in the configuration", i, queue.Policy)
		}
	}
	for i, rule := range c.Rules {
		if _, ok := c.Policies[rule.Policy]; !ok {
			return fmt.Errorf("rules[%d]: policy %q is not in the configuration", i, rule.Policy)
		}
	}
	return checkPrefetch(c)
}
