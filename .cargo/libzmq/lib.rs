//! Builds libzmq 4.3.5 from its published sources, eleven files of which are mended. In seven of them a peer without any rights could do
//! harm that no option prevents, in this release as in the ones before it. The three encoders learn to send a message of many frames
//! that was encoded before.
//!
//! ```text
//! published ─► OUT_DIR/lib/libzmq.a, OUT_DIR/source ─► MENDS in eleven files ─► compiled ─► their members of libzmq.a replaced
//! ```
//! `[patch.crates-io]` in the manifest of the server puts this crate in the place of the one that zmq-sys names. It never changes
//! what it does not find word for word: with other sources the build fails, and says where.
//!
//! `src/protocols/sockets/libzmq_tests.rs` shows each fault, and that it is mended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Lines of a file, and what stands in their place.
struct Mend {
    file: &'static str,
    published: &'static str,
    mended: &'static str,
}

/// The files that are mended.
const FILES: [&str; 11] = [
    "router",
    "zmtp_engine",
    "v1_encoder",
    "v2_encoder",
    "v3_1_encoder",
    "pipe",
    "stream_engine_base",
    "v2_decoder",
    "session_base",
    "mechanism",
    "plain_server",
];

const MENDS: [Mend; 43] = [
    // A router gives out ids that begin with a zero byte. It let peers bring such ids along, and aborted the process when it came to
    // one that was taken. (A ZAP handler cannot refuse them: the routing id in its request is that of this end.) Now a peer that
    // brings one along is given another, as if it had none. So is one with an id of more than 255 bytes: the protocol allows no
    // more, and the router copies the id for each message.
    Mend {
        file: "router",
        published: "        if (msg.size () == 0) {\n",
        mended: "        if (msg.size () == 0 || msg.size () > 255 || *static_cast<unsigned char *> (msg.data ()) == 0) {\n",
    },
    // A peer's properties were kept as long as its connection, twice, and without a bound. Now a router keeps none: the server reads
    // none. A command of the handshake is bounded too, and a command that nothing handles is freed at once.
    Mend {
        file: "mechanism",
        published: "        (zap_flag_ ? _zap_properties : _zmtp_properties)\n",
        mended: "        if (options.type != ZMQ_ROUTER)\n        (zap_flag_ ? _zap_properties : _zmtp_properties)\n",
    },
    Mend {
        file: "stream_engine_base",
        published: "    const int rc = _mechanism->process_handshake_command (msg_);\n",
        mended: "    if (msg_->size () > spindle_handshake_max) {
        errno = EPROTO;
        return -1;
    }
    const int rc = _mechanism->process_handshake_command (msg_);\n",
    },
    Mend {
        file: "session_base",
        published: "        && !msg_->is_cancel ())
        return 0;\n",
        mended: "        && !msg_->is_cancel ()) {
        int rc = msg_->close ();
        errno_assert (rc == 0);
        rc = msg_->init ();
        errno_assert (rc == 0);
        return 0;
    }\n",
    },
    // When a peer's id was taken over, its connection was never closed. Its next message found no pipe that took it, so the engine
    // read no further, and did not see the end. Now the engine and its session end with the pipe. (A session without an engine has
    // asked for its end before, and must not do so twice: another one may have its address by then.) Until then messages for the
    // closed pipe are dropped, and the end is seen.
    Mend {
        file: "session_base",
        published: "    if (!is_terminating () && options.raw_socket) {\n",
        mended: "    if (!is_terminating ()
        && (options.raw_socket
            || (options.type == ZMQ_ROUTER && !_active && _engine && !_pipe))) {\n",
    },
    Mend {
        file: "pipe",
        published: "    if (unlikely (!check_write ()))
        return false;
\n",
        mended: "    if (unlikely (!check_write ())) {
        if (_hwm < weighed || _state == active)
            return false;
        const int rc = const_cast<msg_t *> (msg_)->close ();
        errno_assert (rc == 0);
        return true;
    }
\n",
    },
    // An engine that had stopped to read because the pipe was full.
    Mend {
        file: "pipe",
        published: "        if (_delay)
            _state = waiting_for_delimiter;
        else {
            _state = term_ack_sent;
            _out_pipe = NULL;
            send_pipe_term_ack (_peer);
        }
    }
",
        mended: "        if (_delay) {
            _state = waiting_for_delimiter;
            if (_hwm >= weighed && !_out_active)
                _sink->write_activated (this);
            return;
        }
        _state = term_ack_sent;
        _out_pipe = NULL;
        send_pipe_term_ack (_peer);
    }
",
    },
    // Of a PING without its time to live, the PONG brought sixteen bytes from behind the command. Now it is passed over.
    Mend {
        file: "zmtp_engine",
        published: "        // Get the remote heartbeat TTL to setup the timer\n",
        mended: "        if (msg_->size () < ping_ttl_len) {\n            errno = EPROTO;\n            return -1;\n        }\n",
    },
    // The routing id of a peer of ZMTP 1.0 or 2.0 that came while the server closed its sockets aborted the process, since its pipe
    // was closed before. Now it waits for the end, like any message then. (Newer peers have this in the published source.)
    Mend {
        file: "zmtp_engine",
        published: "        msg_->set_flags (msg_t::routing_id);\n        const int rc = session ()->push_msg (msg_);\n        errno_assert (rc == 0);\n",
        mended: "        msg_->set_flags (msg_t::routing_id);\n        const int rc = session ()->push_msg (msg_);\n        if (rc == -1 && errno == EAGAIN)\n            return -1;\n        errno_assert (rc == 0);\n",
    },
    // A router took messages from all of its peers or from none, so that one who asked too fast made all others wait. Now option
    // 20001 holds the peer with a routing id back, and option 20002 lets it go on. A peer that is held back stands among those
    // without an id, and is told from them by having one.
    Mend {
        file: "router",
        published: "    switch (option_) {\n        case ZMQ_ROUTER_RAW:\n",
        mended: "    if (option_ == 20004) {
        options.plain_username = \"users\";
        return 0;
    }
    if (option_ == 20001 || option_ == 20002) {
        out_pipe_t *const peer = lookup_out_pipe (
          blob_t (static_cast<unsigned char *> (const_cast<void *> (optval_)), optvallen_, reference_tag_t ()));
        if (!peer) {
            errno = EHOSTUNREACH;
            return -1;
        }
        const bool is_held = _anonymous_pipes.count (peer->pipe) != 0;
        if (option_ == 20001 && !is_held) {
            _fq.pipe_terminated (peer->pipe);
            _anonymous_pipes.insert (peer->pipe);
        } else if (option_ == 20002 && is_held) {
            _anonymous_pipes.erase (peer->pipe);
            _fq.attach (peer->pipe);
        }
        return 0;
    }
    switch (option_) {
        case ZMQ_ROUTER_RAW:\n",
    },
    Mend {
        file: "router",
        published: "    if (0 == _anonymous_pipes.erase (pipe_)) {
        erase_out_pipe (pipe_);
        _fq.pipe_terminated (pipe_);\n",
        mended: "    const bool is_queued = 0 == _anonymous_pipes.erase (pipe_);
    if (is_queued || pipe_->get_routing_id ().size () != 0) {
        erase_out_pipe (pipe_);
        if (is_queued)
            _fq.pipe_terminated (pipe_);\n",
    },
    Mend {
        file: "router",
        published: "        _fq.activated (pipe_);\n    else {\n",
        mended: "        _fq.activated (pipe_);\n    else if (pipe_->get_routing_id ().size () == 0) {\n",
    },
    // A message to an id went to whoever had it by then: when another connection took an id over, to a stranger. Now a router gives
    // each peer with an id of its own a number when it first receives from it. spindle_peer tells that of the last message's peer, and
    // after spindle_address_peer the next message goes to the peer with that number, or is refused as one to nobody.
    Mend {
        file: "router",
        published: "#include \"err.hpp\"\n",
        mended: "#include \"err.hpp\"
#include <atomic>
#include <map>

namespace
{
thread_local std::map<const zmq::pipe_t *, uint64_t> peers;
thread_local uint64_t received_from = 0, addressed = 0;
std::atomic<uint64_t> last_peer (0);

void receives_from (const zmq::pipe_t *pipe_, const void *id_)
{
    received_from = 0;
    if (*static_cast<const unsigned char *> (id_) == 0)
        return;
    uint64_t &peer = peers[pipe_];
    if (peer == 0)
        peer = ++last_peer;
    received_from = peer;
}

bool is_addressed (const zmq::pipe_t *pipe_)
{
    const uint64_t peer = addressed;
    addressed = 0;
    if (likely (peer == 0))
        return true;
    const std::map<const zmq::pipe_t *, uint64_t>::const_iterator found =
      peers.find (pipe_);
    return found != peers.end () && found->second == peer;
}
}

extern \"C\" uint64_t spindle_peer ()
{
    return received_from;
}

extern \"C\" void spindle_address_peer (uint64_t peer_)
{
    addressed = peer_;
}
",
    },
    Mend {
        file: "router",
        published: "            if (out_pipe) {\n                _current_out = out_pipe->pipe;\n",
        mended: "            if (is_addressed (out_pipe ? out_pipe->pipe : NULL) && out_pipe) {\n                _current_out = out_pipe->pipe;\n",
    },
    Mend {
        file: "router",
        published: "            const int rc = msg_->move (_prefetched_id);\n",
        mended: "            receives_from (_current_in, _prefetched_id.data ());\n            const int rc = msg_->move (_prefetched_id);\n",
    },
    Mend {
        file: "router",
        published: "        memcpy (msg_->data (), routing_id.data (), routing_id.size ());\n",
        mended: "        memcpy (msg_->data (), routing_id.data (), routing_id.size ());\n        receives_from (pipe, routing_id.data ());\n",
    },
    Mend {
        file: "router",
        published: "void zmq::router_t::xpipe_terminated (pipe_t *pipe_)\n{\n",
        mended: "void zmq::router_t::xpipe_terminated (pipe_t *pipe_)\n{\n    peers.erase (pipe_);\n",
    },
    // A message of a hundred thousand frames passed each of them through two pipes, and a router sends nothing else meanwhile. Now a
    // frame that spindle_mark_encoded has marked holds the frames of a whole message, encoded as in ZMTP 2.0 and later, and is sent as
    // it is. The mark is its routing id, a field that only other kinds of sockets use. For a peer of ZMTP 1.0 the heads of its frames are written anew.
    Mend {
        file: "v2_encoder",
        published: "void zmq::v2_encoder_t::message_ready ()\n{\n",
        mended: "extern \"C\" void spindle_mark_encoded (void *frame_)
{
    const int rc =
      static_cast<zmq::msg_t *> (frame_)->set_routing_id (20003);
    errno_assert (rc == 0);
}

extern \"C\" bool spindle_is_encoded (void *frame_)
{
    return static_cast<zmq::msg_t *> (frame_)->get_routing_id () == 20003;
}

void zmq::v2_encoder_t::message_ready ()
{
    if (in_progress ()->get_routing_id () == 20003) {
        next_step (in_progress ()->data (), in_progress ()->size (),
                   &v2_encoder_t::message_ready, true);
        return;
    }
",
    },
    Mend {
        file: "v3_1_encoder",
        published: "void zmq::v3_1_encoder_t::message_ready ()\n{\n",
        mended: "void zmq::v3_1_encoder_t::message_ready ()
{
    if (in_progress ()->get_routing_id () == 20003) {
        next_step (in_progress ()->data (), in_progress ()->size (),
                   &v3_1_encoder_t::message_ready, true);
        return;
    }
",
    },
    Mend {
        file: "v1_encoder",
        published: "#include \"v1_encoder.hpp\"\n",
        mended: "#include \"v1_encoder.hpp\"\n#include \"v2_protocol.hpp\"\n#include <string.h>\n",
    },
    Mend {
        file: "v1_encoder",
        published: "void zmq::v1_encoder_t::message_ready ()\n{\n",
        mended: "void zmq::v1_encoder_t::message_ready ()
{
    if (in_progress ()->get_routing_id () == 20003) {
        const unsigned char *const begin =
          static_cast<unsigned char *> (in_progress ()->data ());
        const unsigned char *const end = begin + in_progress ()->size ();
        size_t room = 0;
        for (const unsigned char *at = begin; at != end;) {
            const bool is_large = *at & v2_protocol_t::large_flag;
            const size_t size = is_large ? get_uint64 (at + 1) : at[1];
            room += size + (size < 254 ? 2 : 10);
            at += size + (is_large ? 9 : 2);
        }
        msg_t older;
        int rc = older.init_size (room);
        errno_assert (rc == 0);
        unsigned char *to = static_cast<unsigned char *> (older.data ());
        for (const unsigned char *at = begin; at != end;) {
            const bool is_large = *at & v2_protocol_t::large_flag;
            const size_t size = is_large ? get_uint64 (at + 1) : at[1];
            if (size < 254) {
                *to++ = static_cast<unsigned char> (size + 1);
            } else {
                *to++ = 0xff;
                put_uint64 (to, size + 1);
                to += 8;
            }
            *to++ = *at & v2_protocol_t::more_flag;
            at += is_large ? 9 : 2;
            memcpy (to, at, size);
            to += size;
            at += size;
        }
        rc = in_progress ()->move (older);
        errno_assert (rc == 0);
        next_step (in_progress ()->data (), in_progress ()->size (),
                   &v1_encoder_t::message_ready, true);
        return;
    }
",
    },
    // A pipe was bounded by a number of messages, whatever their size, and a message without a last frame by nothing. Now a pipe whose
    // high-water mark is 2^20 and more counts kibibytes, up to what the mark is above 2^20. All such pipes together count the same, up
    // to what spindle_bound_piped has said: above it, a pipe takes no more than 128 KiB. The reader tells the writer after each 64 KiB, so
    // that a pipe which is full by either bound is told when it no longer is. Both ends add up a message's frames, in units of 64 bytes,
    // in a field that only other kinds of sockets use. A message is never stopped halfway, since its reader sees none of it before its
    // end. Instead its bytes are told to spindle_message_grows (src/protocols/sockets/unfinished.rs), which may end its connection.
    Mend {
        file: "pipe",
        published: "#include \"ypipe_conflate.hpp\"\n",
        mended: "#include \"ypipe_conflate.hpp\"
#include <atomic>

extern \"C\" void spindle_message_grows (int fd_, uint64_t bytes_);
// Of the connection that this thread is reading.
thread_local int spindle_reading = -1;

namespace
{
const int weighed = 1 << 20;
const uint64_t told_after = 64, crowded = 128;
const uint32_t units_in_kib = 16, unfinished_told_after = 128;
std::atomic<uint64_t> piped (0), piped_max (~uint64_t (0));

// Of a frame: its structure, and its bytes.
uint32_t units (const zmq::msg_t &msg_)
{
    return static_cast<uint32_t> (1 + (msg_.size () + 63) / 64);
}

uint64_t kib (uint32_t units_)
{
    return (uint64_t (units_) + units_in_kib - 1) / units_in_kib;
}
}

extern \"C\" void spindle_bound_piped (uint64_t bytes_)
{
    piped_max.store (bytes_ / 1024, std::memory_order_relaxed);
}

extern \"C\" uint64_t spindle_piped ()
{
    return piped.load (std::memory_order_relaxed) * 1024;
}
",
    },
    Mend {
        file: "pipe",
        published: "    if (!(msg_->flags () & msg_t::more) && !msg_->is_routing_id ())
        _msgs_read++;

    if (_lwm > 0 && _msgs_read % _lwm == 0)
        send_activate_write (_peer, _msgs_read);
",
        mended: "    if (_lwm >= weighed / 2) {
        const unsigned char flags = msg_->flags ();
        if (unlikely (flags & msg_t::routing_id))
            return true;
        _server_socket_routing_id += units (*msg_);
        if (!(flags & msg_t::more)) {
            const uint64_t before = _msgs_read;
            _msgs_read += kib (_server_socket_routing_id);
            piped.fetch_sub (kib (_server_socket_routing_id),
                             std::memory_order_relaxed);
            _server_socket_routing_id = 0;
            if (before / told_after != _msgs_read / told_after)
                send_activate_write (_peer, _msgs_read);
        }
        return true;
    }

    if (!(msg_->flags () & msg_t::more) && !msg_->is_routing_id ())
        _msgs_read++;

    if (_lwm > 0 && _msgs_read % _lwm == 0)
        send_activate_write (_peer, _msgs_read);
",
    },
    Mend {
        file: "pipe",
        published: "    const bool is_routing_id = msg_->is_routing_id ();
    _out_pipe->write (*msg_, more);
    if (!more && !is_routing_id)
",
        mended: "    const bool is_routing_id = msg_->is_routing_id ();
    if (_hwm >= weighed) {
        if (unlikely (msg_->flags () & (msg_t::credential | msg_t::routing_id))) {
            _out_pipe->write (*msg_, more);
            return true;
        }
        const uint32_t before = _server_socket_routing_id;
        const uint32_t after = before + units (*msg_);
        _out_pipe->write (*msg_, more);
        if (more) {
            _server_socket_routing_id = after;
            if (before / unfinished_told_after != after / unfinished_told_after)
                spindle_message_grows (spindle_reading, uint64_t (after) * 64);
        } else {
            _server_socket_routing_id = 0;
            _msgs_written += kib (after);
            piped.fetch_add (kib (after), std::memory_order_relaxed);
            if (before >= unfinished_told_after)
                spindle_message_grows (spindle_reading, 0);
        }
        return true;
    }
    _out_pipe->write (*msg_, more);
    if (!more && !is_routing_id)
",
    },
    Mend {
        file: "pipe",
        published: "    //  Remove incomplete message from the outbound pipe.
    msg_t msg;
",
        mended: "    //  Remove incomplete message from the outbound pipe.
    if (_hwm >= weighed)
        const_cast<pipe_t *> (this)->_server_socket_routing_id = 0;
    msg_t msg;
",
    },
    Mend {
        file: "pipe",
        published: "        while (_in_pipe->read (&msg)) {\n",
        mended: "        while (_in_pipe->read (&msg)) {
            if (_lwm >= weighed / 2 && !msg.is_delimiter () && !msg.is_credential ()
                && !msg.is_routing_id ()) {
                _server_socket_routing_id += units (msg);
                if (!(msg.flags () & msg_t::more)) {
                    piped.fetch_sub (kib (_server_socket_routing_id),
                                     std::memory_order_relaxed);
                    _server_socket_routing_id = 0;
                }
            }
",
    },
    Mend {
        file: "pipe",
        published: "    const bool full =
      _hwm > 0 && _msgs_written - _peers_msgs_read >= uint64_t (_hwm);
",
        mended: "    if (_hwm >= weighed) {
        const uint64_t held = _msgs_written - _peers_msgs_read;
        return _server_socket_routing_id != 0
               || (held < uint64_t (_hwm - weighed)
                   && (held < crowded
                       || piped.load (std::memory_order_relaxed)
                            < piped_max.load (std::memory_order_relaxed)));
    }
    const bool full =
      _hwm > 0 && _msgs_written - _peers_msgs_read >= uint64_t (_hwm);
",
    },
    // What a router has received of a frame that is larger than the buffer of its connection is told to spindle_frame_grows, which
    // may end the connection, and 0 once the frame is whole. Its last bytes may come in a buffer of the usual size. A frame of the
    // handshake is never that large.
    Mend {
        file: "stream_engine_base",
        published: "#include \"wire.hpp\"\n",
        mended: "#include \"wire.hpp\"
#include \"v2_protocol.hpp\"
#include <vector>

extern \"C\" void spindle_frame_grows (int fd_, uint64_t bytes_);
extern \"C\" void spindle_connection_ends (int fd_);
extern \"C\" void
spindle_connection_logs_in (int fd_, const void *user_, size_t size_);
extern thread_local int spindle_reading;

namespace
{
const size_t spindle_handshake_max = 8192;

int spindle_seal (zmq::mechanism_t &mechanism_, zmq::msg_t *msg_)
{
    const unsigned char *at = static_cast<unsigned char *> (msg_->data ());
    const unsigned char *const end = at + msg_->size ();
    std::vector<unsigned char> sealed;
    while (at != end) {
        const unsigned char flags = *at;
        const bool is_large = flags & zmq::v2_protocol_t::large_flag;
        const size_t size = is_large ? zmq::get_uint64 (at + 1) : at[1];
        at += is_large ? 9 : 2;
        zmq::msg_t frame;
        int rc = frame.init_size (size);
        errno_assert (rc == 0);
        memcpy (frame.data (), at, size);
        at += size;
        if (flags & zmq::v2_protocol_t::more_flag)
            frame.set_flags (zmq::msg_t::more);
        const int encoded = mechanism_.encode (&frame);
        const unsigned char *const body =
          static_cast<unsigned char *> (frame.data ());
        const size_t before = sealed.size ();
        if (frame.size () > 255) {
            sealed.resize (before + 9, zmq::v2_protocol_t::large_flag);
            zmq::put_uint64 (&sealed[before + 1], frame.size ());
        } else {
            sealed.push_back (0);
            sealed.push_back (static_cast<unsigned char> (frame.size ()));
        }
        sealed.insert (sealed.end (), body, body + frame.size ());
        rc = frame.close ();
        errno_assert (rc == 0);
        if (encoded == -1)
            return -1;
    }
    int rc = msg_->close ();
    errno_assert (rc == 0);
    rc = msg_->init_size (sealed.size ());
    errno_assert (rc == 0);
    if (!sealed.empty ())
        memcpy (msg_->data (), &sealed[0], sealed.size ());
    return msg_->set_routing_id (20003);
}
}
",
    },
    Mend {
        file: "stream_engine_base",
        published: "    zmq_assert (!_plugged);

    if (_s != retired_fd) {
#ifdef ZMQ_HAVE_WINDOWS
",
        mended: "    zmq_assert (!_plugged);

    if (_s != retired_fd) {
        if (_options.type == ZMQ_ROUTER)
            spindle_connection_ends (_s);
#ifdef ZMQ_HAVE_WINDOWS
",
    },
    Mend {
        file: "stream_engine_base",
        published: "        _decoder->resize_buffer (_insize);
    }

    int rc = 0;
",
        mended: "        _decoder->resize_buffer (_insize);
        if (_options.type == ZMQ_ROUTER) {
            const size_t usual = static_cast<size_t> (_options.in_batch_size);
            if (likely (bufsize <= usual))
                ends_large = _decoder->msg ()->size () > usual;
            else if (_process_msg
                     == &stream_engine_base_t::process_handshake_command) {
                errno = EPROTO;
                error (protocol_error);
                return false;
            } else
                spindle_frame_grows (
                  _s, _insize == bufsize
                        ? 0
                        : _decoder->msg ()->size () - bufsize + _insize);
        }
    }

    spindle_reading = _s;
    int rc = 0;
",
    },
    Mend {
        file: "stream_engine_base",
        published: "    //  If there's no data to process in the buffer...
    if (!_insize) {
",
        mended: "    bool ends_large = false;
    //  If there's no data to process in the buffer...
    if (!_insize) {
",
    },
    Mend {
        file: "stream_engine_base",
        published: "    while (_insize > 0) {
        rc = _decoder->decode (_inpos, _insize, processed);
        zmq_assert (processed <= _insize);
        _inpos += processed;
        _insize -= processed;
        if (rc == 0 || rc == -1)
            break;
",
        mended: "    while (_insize > 0) {
        rc = _decoder->decode (_inpos, _insize, processed);
        zmq_assert (processed <= _insize);
        _inpos += processed;
        _insize -= processed;
        if (rc == 0 || rc == -1)
            break;
        if (unlikely (ends_large)) {
            spindle_frame_grows (_s, 0);
            ends_large = false;
        }
",
    },
    Mend {
        file: "stream_engine_base",
        published: "    zmq_assert (_input_stopped);
    zmq_assert (_session != NULL);
    zmq_assert (_decoder != NULL);

    int rc",
        mended: "    zmq_assert (_input_stopped);
    zmq_assert (_session != NULL);
    zmq_assert (_decoder != NULL);

    spindle_reading = _s;
    int rc",
    },
    // A frame of a few dozen bytes that came alone kept the whole buffer of 8 KiB into which it was received. Now frames are copied out
    // of a buffer of which less than a quarter was filled.
    Mend {
        file: "v2_decoder",
        published: "    if (unlikely (!_zero_copy\n",
        mended: "    if (unlikely (!_zero_copy || allocator.size () < 2048\n",
    },
    // A peer that was let in kept its pipe to the ZAP handler as long as its connection: 32 KiB, and the end of the handler would have
    // been the end of the connection. Now the pipe goes once the handshake is over.
    Mend {
        file: "session_base",
        published: "    //  Create the pipe if it does not exist yet.\n    if (!_pipe && !is_terminating ()) {\n",
        mended: "    if (options.type == ZMQ_ROUTER && _zap_pipe)
        _zap_pipe->terminate (false);
    //  Create the pipe if it does not exist yet.
    if (!_pipe && !is_terminating ()) {\n",
    },
    // The user that a ZAP handler has named is told to spindle_connection_logs_in (src/protocols/sockets/logged_in.rs), which may end the
    // connection when the user is removed.
    Mend {
        file: "stream_engine_base",
        published: "    //  Add ZMTP properties.\n",
        mended: "    const blob_t &user = _mechanism->get_user_id ();
    if (_options.type == ZMQ_ROUTER && user.size () > 0)
        spindle_connection_logs_in (_s, user.data (), user.size ());

    //  Add ZMTP properties.\n",
    },
    // A message that was encoded before was sealed as one frame. Now its frames are sealed one by one, and stay one piece.
    Mend {
        file: "stream_engine_base",
        published: "    if (_mechanism->encode (msg_) == -1)
        return -1;
    return 0;
}
",
        mended: "    if (msg_->get_routing_id () == 20003 && _options.mechanism == ZMQ_CURVE
        && dynamic_cast<curve_server_t *> (_mechanism))
        return spindle_seal (*_mechanism, msg_);
    if (_mechanism->encode (msg_) == -1)
        return -1;
    return 0;
}
",
    },
    // A router took one mechanism. Now option 20004 (above) makes one with CURVE take PLAIN too: it waits for the mechanism of its peer
    // before it tells its own. A peer with a mechanism that is not taken is told to the ZAP handler, which counts it, and is refused.
    Mend {
        file: "zmtp_engine",
        published: "#include \"wire.hpp\"\n",
        mended: "#include \"wire.hpp\"
#include \"zap_client.hpp\"

namespace
{
class spindle_stranger_t ZMQ_FINAL : public zmq::zap_client_t
{
  public:
    spindle_stranger_t (zmq::session_base_t *session_,
                        const std::string &address_,
                        const zmq::options_t &options_) :
        zmq::mechanism_base_t (session_, options_),
        zmq::zap_client_t (session_, address_, options_)
    {
    }
    int next_handshake_command (zmq::msg_t *) ZMQ_FINAL { return -1; }
    int process_handshake_command (zmq::msg_t *) ZMQ_FINAL { return -1; }
    status_t status () const ZMQ_FINAL { return error; }

    void tell (const char *mechanism_, size_t size_)
    {
        if (session->zap_connect () == 0)
            send_zap_request (mechanism_, size_, NULL, NULL, 0);
    }
};

const char plain_name[] = \"PLAIN\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\";

bool takes_both (const zmq::options_t &options_)
{
    return options_.type == ZMQ_ROUTER && options_.mechanism == ZMQ_CURVE
           && !options_.plain_username.empty ();
}
}
",
    },
    Mend {
        file: "zmtp_engine",
        published: "        if (_outpos + _outsize == _greeting_send + signature_size + 1) {
            if (_outsize == 0)
",
        mended: "        const bool waits =
          takes_both (_options) && _greeting_recv[revision_pos] >= ZMTP_3_x;
        if (waits)
            _greeting_size = v3_greeting_size;
        if (_outpos + _outsize == _greeting_send + signature_size + 1
            && (!waits || _greeting_bytes_read >= minor_pos + 1 + 20)) {
            if (_outsize == 0)
",
    },
    Mend {
        file: "zmtp_engine",
        published: "                if (_options.mechanism == ZMQ_NULL)
                    memcpy (_outpos + _outsize, \"NULL\", 4);
                else if (_options.mechanism == ZMQ_PLAIN)
",
        mended: "                if (_options.mechanism == ZMQ_NULL)
                    memcpy (_outpos + _outsize, \"NULL\", 4);
                else if (_options.mechanism == ZMQ_PLAIN
                         || (waits
                             && memcmp (_greeting_recv + 12, plain_name, 20)
                                  == 0))
",
    },
    Mend {
        file: "zmtp_engine",
        published: "    } else if (_options.mechanism == ZMQ_PLAIN
               && memcmp",
        mended: "    } else if ((_options.mechanism == ZMQ_PLAIN || takes_both (_options))
               && memcmp",
    },
    Mend {
        file: "zmtp_engine",
        published: "    else {
        socket ()->event_handshake_failed_protocol (
          session ()->get_endpoint (),
          ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH);
",
        mended: "    else {
        if (_options.type == ZMQ_ROUTER && !_options.zap_domain.empty ()) {
            const char *const name =
              reinterpret_cast<const char *> (_greeting_recv + 12);
            spindle_stranger_t (session (), _peer_address, _options)
              .tell (name, strnlen (name, 20));
            if (_outsize > 0)
                write (_outpos, _outsize);
        }
        socket ()->event_handshake_failed_protocol (
          session ()->get_endpoint (),
          ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH);
",
    },
    // The ERROR of PLAIN did not have its name: the compiler took \x5E of \x5ERROR for one byte.
    Mend {
        file: "plain_server",
        published: "#include \"plain_common.hpp\"\n",
        mended: "#include \"plain_common.hpp\"

namespace
{
const char spindle_error[] = \"\\5ERROR\";
}
#define error_prefix spindle_error
#define error_prefix_len (sizeof (spindle_error) - 1)
",
    },
];

/// What the published build tells the compiler on Linux, beside what the environment says: a file that is compiled with other words
/// would see other layouts.
const DEFINES: [&str; 13] = [
    "ZMQ_USE_CV_IMPL_STL11",
    "ZMQ_STATIC",
    "ZMQ_USE_BUILTIN_SHA1",
    "ZMQ_USE_LIBSODIUM",
    "ZMQ_HAVE_CURVE",
    "ZMQ_HAVE_WS",
    "ZMQ_HAVE_LINUX",
    "ZMQ_IOTHREAD_POLLER_USE_EPOLL",
    "ZMQ_POLL_BASED_ON_POLL",
    "ZMQ_HAVE_IPC",
    "HAVE_STRNLEN",
    "ZMQ_HAVE_UIO",
    "ZMQ_HAVE_STRUCT_SOCKADDR_UN",
];

/// The headers of libsodium.
const SODIUM_INCLUDE: &str = env!("SODIUM_INCLUDE");

/// What zmq-sys asks for.
#[derive(Default)]
pub struct Build(());

impl Build {
    /// Of the library.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the libsodium of this package, whatever the caller has.
    ///
    /// # Panics
    /// If the caller has one.
    pub fn with_libsodium(&mut self, at: Option<()>) -> &mut Self {
        assert!(at.is_none(), "libzmq is built with the libsodium of this package");
        self
    }

    /// Builds it, and tells Cargo where it is.
    ///
    /// # Panics
    /// If it cannot be built, or its sources are not those that these words are for.
    pub fn build(&mut self) {
        let target = env::var("TARGET").expect("Cargo says for which target it builds");
        assert!(target.contains("linux"), "libzmq is mended for Linux only, not for {target}");
        // libsodium is compiled for the machine that builds, since only its build scripts see it.
        let host = env::var("HOST").expect("Cargo says on which machine it builds");
        assert!(target == host, "libsodium is compiled for {host} and not for {target}: build on the machine that it is for");
        let sodium = published::LibLocation::new(env!("SODIUM_LIB"), SODIUM_INCLUDE);
        published::Build::new().with_libsodium(Some(sodium)).build();
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where to build"));
        let library = out.join("lib/libzmq.a");
        for file in FILES {
            replace(&library, file, &compile(file, &out));
        }
    }
}

/// Compiles a file as mended, in the words of the published build; its object.
fn compile(file: &str, out: &Path) -> PathBuf {
    let (published, folder) = (out.join("source/src").join(file).with_extension("cpp"), out.join("mended"));
    let mut text = fs::read_to_string(&published).expect("the published build leaves its sources there");
    for mend in MENDS.iter().filter(|mend| mend.file == file) {
        let found = text.matches(mend.published).count();
        assert_eq!(found, 1, "{} has {:?} once", published.display(), mend.published);
        text = text.replace(mend.published, mend.mended);
    }
    let mended = folder.join(file).with_extension("cpp");
    fs::create_dir_all(&folder).and_then(|()| fs::write(&mended, text)).expect("OUT_DIR can be written to");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++11").warnings(false).out_dir(&folder).file(&mended);
    build.include(out.join("source/include")).include(out.join("source/src")).include(out).include(SODIUM_INCLUDE);
    for define in DEFINES {
        build.define(define, "1");
    }
    build.compile_intermediates().pop().expect("a file makes an object")
}

/// Puts an object in the place of the library's own of that name.
fn replace(library: &Path, name: &str, object: &Path) {
    let members = run(Command::new(archiver()).arg("t").arg(library));
    let ending = format!("-{name}.o");
    let own: Vec<&str> = members.lines().filter(|member| member.ends_with(&ending)).collect();
    assert_eq!(own.len(), 1, "{} has one object of {name}", library.display());
    run(Command::new(archiver()).arg("d").arg(library).args(own));
    run(Command::new(archiver()).arg("qs").arg(library).arg(object));
}

fn archiver() -> PathBuf {
    cc::Build::new().get_archiver().get_program().into()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
