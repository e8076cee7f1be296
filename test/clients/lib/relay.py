"""Passes TCP connections on to a Unix socket, for clients that know no other way.

    relay.py SOCKET FILE     writes the port it listens on to FILE
"""
import asyncio
import os
import sys


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def serve(reader, writer):
    inner_reader, inner_writer = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with open(sys.argv[2] + ".new", "w") as file:
        print(server.sockets[0].getsockname()[1], file=file)
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    await server.serve_forever()

asyncio.run(main())
