// A client in Java, on Debian's JeroMQ 0.3.6, which speaks ZMTP 2.0. Asks until it is answered, and prints the answer.
//
//     java -cp jeromq.jar Peer.java DEALER|SUB ENDPOINT

import org.zeromq.ZMQ;

public class Peer {
    public static void main(String[] arguments) {
        boolean subscribes = arguments[0].equals("SUB");
        ZMQ.Context context = ZMQ.context(1);
        ZMQ.Socket socket = context.socket(subscribes ? ZMQ.SUB : ZMQ.DEALER);
        socket.setLinger(0);
        socket.setReceiveTimeOut(100);
        if (subscribes) {
            socket.subscribe(new byte[0]);
        }
        socket.connect(arguments[1]);
        byte[] answer = null;
        while (answer == null) {
            if (!subscribes) {
                socket.send(new byte[] {5}, ZMQ.NOBLOCK);
            }
            answer = socket.recv();
        }
        System.out.println("answered");
    }
}
