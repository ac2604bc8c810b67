package broker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

const (
	// saltLength is how many bytes of salt RabbitMQ puts before a password when it hashes it, and before the hash.
	saltLength = 4
	// whatever else a node hashes new passwords with, it takes a hash that says how it was made.
	hashing = rabbithole.HashingAlgorithmSHA256
)

// User is a user in the broker's own database. Reading and writing them needs the tag administrator: without it the error of each function
// here is ErrForbidden.
type User struct {
	Name string
	Tags []string

	hash      string
	algorithm rabbithole.HashingAlgorithm
}

// Format prints no hash, whatever the verb.
func (u User) Format(state fmt.State, _ rune) { _, _ = fmt.Fprintf(state, "user %q", u.Name) }

// HasPassword tells whether a password is the user's. Of one that was not hashed as PutUser does it, the answer is no.
func (u User) HasPassword(password string) bool {
	salted, err := base64.StdEncoding.DecodeString(u.hash)
	if err != nil || len(salted) <= saltLength || u.algorithm != hashing {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(u.hash), []byte(hashed(salted[:saltLength], password))) == 1
}

// hashed is the password as RabbitMQ stores it.
func hashed(salt []byte, password string) string {
	sum := sha256.Sum256(append(salt[:saltLength:saltLength], password...))
	return base64.StdEncoding.EncodeToString(append(salt[:saltLength:saltLength], sum[:]...))
}

// Permission is what a user may do in one vhost, as patterns of names.
type Permission struct {
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// User reads one user. Where there is none of the name the error is ErrNotFound.
func (c *Client) User(ctx context.Context, name string) (User, error) {
	var row struct {
		Name      string                      `json:"name"`
		Tags      rabbithole.UserTags         `json:"tags"`
		Hash      string                      `json:"password_hash"`
		Algorithm rabbithole.HashingAlgorithm `json:"hashing_algorithm"`
	}
	what := "read user " + name
	if err := c.get(ctx, what, "users/"+url.PathEscape(name), &row); err != nil {
		return User{}, err
	}
	if row.Name != name {
		return User{}, implausible(what, "it is about something else")
	}
	user := User{Name: row.Name, hash: row.Hash, algorithm: row.Algorithm}
	for _, tag := range row.Tags {
		if tag != "" {
			user.Tags = append(user.Tags, tag)
		}
	}
	return user, nil
}

// PutUser makes a user without tags, or gives one that exists this password and takes its tags away. Connections that stand go on. The
// password itself does not leave this process, but a salted hash of it.
func (c *Client) PutUser(ctx context.Context, name, password string) error {
	salt := make([]byte, saltLength)
	_, _ = rand.Read(salt) // It never fails.
	_, err := c.call(ctx, "write user "+name, func(api *rabbithole.Client) (*http.Response, error) {
		return api.PutUser(name, rabbithole.UserSettings{
			Tags: rabbithole.UserTags{}, PasswordHash: hashed(salt, password), HashingAlgorithm: hashing,
		})
	})
	return err
}

// DeleteUser deletes a user, and the broker ends its connections. One that is not there is success.
func (c *Client) DeleteUser(ctx context.Context, name string) error {
	_, err := c.call(ctx, "delete user "+name, func(api *rabbithole.Client) (*http.Response, error) {
		return api.DeleteUser(name)
	})
	return unlessGone(err)
}

// Permissions are what a user may do, in all vhosts.
func (c *Client) Permissions(ctx context.Context, user string) ([]Permission, error) {
	var rows []Permission
	err := c.get(ctx, "read the permissions of user "+user, "users/"+url.PathEscape(user)+"/permissions", &rows)
	return rows, err
}

// Permit sets what a user may do in a vhost.
func (c *Client) Permit(ctx context.Context, user string, p Permission) error {
	what := fmt.Sprintf("set the permissions of user %s in vhost %q", user, p.VHost)
	_, err := c.call(ctx, what, func(api *rabbithole.Client) (*http.Response, error) {
		return api.UpdatePermissionsIn(p.VHost, user, rabbithole.Permissions{Configure: p.Configure, Write: p.Write, Read: p.Read})
	})
	return err
}

// Forbid takes a vhost from a user.
func (c *Client) Forbid(ctx context.Context, user, vhost string) error {
	what := fmt.Sprintf("remove the permissions of user %s in vhost %q", user, vhost)
	_, err := c.call(ctx, what, func(api *rabbithole.Client) (*http.Response, error) {
		return api.ClearPermissionsIn(vhost, user)
	})
	return unlessGone(err)
}

// Sessions is the number of connections of a user, to any vhost. The broker knows them at once, unlike its counts of messages.
func (c *Client) Sessions(ctx context.Context, user string) (int, error) {
	var rows []struct{}
	err := c.get(ctx, "read the connections of user "+user, "connections/username/"+url.PathEscape(user), &rows)
	return len(rows), err
}
