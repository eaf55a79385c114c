"""The built-in algorithms, one file each, written exactly as a user's would be.

May import: errors, spaces, author, nn.
"""
