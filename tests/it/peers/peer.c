/* A client in C, on the system's libzmq: REQ and DEALER for requests, SUB for a notification.
 *
 *     peer KV PUBLISH
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { CREATE_TABLE = 0, UPDATE = 2, GET = 4, PATIENCE_MILLIS = 20000, LOOK_MILLIS = 100 };

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static void *connected(void *context, int kind, const char *endpoint) {
    int patience = PATIENCE_MILLIS, linger = 0;
    void *socket = zmq_socket(context, kind);
    check(socket != NULL, "a socket");
    check(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience, sizeof patience) == 0, "its patience");
    check(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) == 0, "its linger");
    check(zmq_connect(socket, endpoint) == 0, "a connection");
    return socket;
}

/* Sends a request: its code, and arguments up to NULL. */
static void ask(void *socket, unsigned char code, const char *const *arguments) {
    check(zmq_send(socket, &code, 1, *arguments ? ZMQ_SNDMORE : 0) == 1, "a code is sent");
    for (; *arguments; arguments++)
        check(zmq_send(socket, *arguments, strlen(*arguments), arguments[1] ? ZMQ_SNDMORE : 0) >= 0, "it is sent");
}

/* Receives one frame, which must be this one. */
static void expect(void *socket, const char *frame, int length, const char *what) {
    char buffer[256];
    int received = zmq_recv(socket, buffer, sizeof buffer, 0);
    check(received == length && memcmp(buffer, frame, (size_t)length) == 0, what);
}

int main(int count, char **arguments) {
    const char *table[] = {"c", NULL}, *change[] = {"c", "k", "v", NULL}, *key[] = {"c", "k", NULL};
    if (count != 3)
        return 2;
    void *context = zmq_ctx_new();
    void *req = connected(context, ZMQ_REQ, arguments[1]), *dealer = connected(context, ZMQ_DEALER, arguments[1]);
    void *sub = connected(context, ZMQ_SUB, arguments[2]);
    check(zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "c", 1) == 0, "a subscription");

    ask(req, CREATE_TABLE, table);
    expect(req, "\1", 1, "the table");
    for (int number = 0; number < 100; number++)
        ask(dealer, UPDATE, change);
    for (int number = 0; number < 100; number++)
        expect(dealer, "\1", 1, "an update");

    /* The subscription takes a moment to reach the server. */
    zmq_pollitem_t readable = {sub, 0, ZMQ_POLLIN, 0};
    do {
        ask(req, UPDATE, change);
        expect(req, "\1", 1, "an update");
        check(zmq_poll(&readable, 1, LOOK_MILLIS) >= 0, "a look");
    } while (!(readable.revents & ZMQ_POLLIN));
    expect(sub, "c", 1, "the table of a change");
    expect(sub, "\0", 1, "its kind");
    expect(sub, "k", 1, "its key");

    ask(req, GET, key);
    expect(req, "\1", 1, "an answer");
    expect(req, "v", 1, "its value");
    zmq_close(req);
    zmq_close(dealer);
    zmq_close(sub);
    zmq_ctx_term(context);
    return 0;
}
